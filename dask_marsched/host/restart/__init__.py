"""Records on a scheduler what the next one must know to go on, and goes on from that."""
