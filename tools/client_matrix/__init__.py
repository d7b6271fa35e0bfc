"""Real clients of Bedrock, unmodified, against our service and the stand-in for Bedrock."""
