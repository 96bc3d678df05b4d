# One image for all three services. A worker image of your own is two lines:
#   FROM envtrio
#   COPY my_hooks.py /app/
# with ENV_WORKER_HOOK=my_hooks:hook in its environment.
FROM python:3.11-slim

WORKDIR /app
# Dependencies change seldom, sources often: install the former from the metadata alone.
COPY pyproject.toml README.md LICENSE /src/
RUN mkdir -p /src/env_worker /src/env_broker /src/env_client /src/protos/envtrio/v1 \
    && touch /src/env_worker/__init__.py /src/env_broker/__init__.py /src/env_client/__init__.py \
       /src/protos/envtrio/__init__.py /src/protos/envtrio/v1/__init__.py \
    && pip install --no-cache-dir '/src[reasoning-gym,progress]' \
    && pip uninstall --yes envtrio
COPY protos /src/protos
COPY env_worker /src/env_worker
COPY env_broker /src/env_broker
COPY env_client /src/env_client
RUN pip install --no-cache-dir --no-deps /src && rm -rf /src/build
COPY examples /app/examples

# Anything but loopback is plain text without TLS: inside the compose network that is what is wanted, and
# the flag says so.
ENV PYTHONUNBUFFERED=1 \
    ENV_WORKER_INSECURE=true \
    ENV_BROKER_INSECURE=true
RUN useradd --create-home --uid 10001 envtrio
USER envtrio
CMD ["env-worker", "--help"]
