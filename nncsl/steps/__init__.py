"""How a step gets to its device: prepared ahead, sent in one copy, captured as a graph, watched for divergence."""
