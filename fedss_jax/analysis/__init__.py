"""What a run or a model costs and does, beside its score. Nothing here imports the round or the loop."""
