# One image for all three services. A worker image of your own is a few lines:
#   FROM envtrio
#   COPY my_hooks.py /app/
#   ENV ENV_WORKER_HOOK=my_hooks:hook
FROM python:3.11-slim AS build

# A requirement of reasoning-gym is compiled. The compiler stays in this stage.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
# Requirements change seldom, sources often: install the former from the metadata alone.
COPY pyproject.toml README.md LICENSE ./
RUN mkdir -p env_worker env_broker env_client protos/envtrio/v1 \
    && touch env_worker/__init__.py env_broker/__init__.py env_client/__init__.py protos/envtrio/__init__.py \
    && python -m venv /opt/envtrio \
    && /opt/envtrio/bin/pip install --no-cache-dir '.[reasoning-gym,progress,engines]' \
    && /opt/envtrio/bin/pip uninstall --yes envtrio && rm -rf build
COPY protos protos
COPY env_worker env_worker
COPY env_broker env_broker
COPY env_client env_client
RUN /opt/envtrio/bin/pip install --no-cache-dir --no-deps .

FROM python:3.11-slim

COPY --from=build /opt/envtrio /opt/envtrio
WORKDIR /app
COPY examples examples
# Anything but loopback is plain text in this version. Inside the compose network that is what is wanted, and
# the flag says so.
ENV PATH=/opt/envtrio/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp/matplotlib \
    ENV_WORKER_INSECURE=true \
    ENV_BROKER_INSECURE=true
RUN useradd --create-home --uid 10001 envtrio
USER envtrio
CMD ["env-worker", "--help"]
