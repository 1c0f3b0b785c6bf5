"""What a program reads, writes and depends on."""
