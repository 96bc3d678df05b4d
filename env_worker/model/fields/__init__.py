"""Fields of engines' requests and responses, each read alone: what a response holds is believed of none."""
