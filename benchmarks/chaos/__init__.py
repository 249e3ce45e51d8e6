"""Work on a cluster while workers die, stand still and lose their network."""
