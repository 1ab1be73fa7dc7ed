"""One file a revision. They never import the models, which move on."""
