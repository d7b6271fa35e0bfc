"""The bodies of InvokeModel: each family of models has its own, known by the model's id."""
