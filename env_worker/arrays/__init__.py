"""Training arrays that a worker keeps after the reply, and serves to trainers."""
