"""Text, pictures, sound and arrays to a graph's inputs."""
