"""What is known of the costs of tasks: seconds and bytes, recorded or derived."""
