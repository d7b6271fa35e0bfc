"""The sources of prices, besides the deployment file."""
