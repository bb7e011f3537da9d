"""Where models are: files and folders, the bundled ones, the Hugging Face Hub."""
