"""What a model is fed besides tokens: pictures, sound, arrays, chats; and the rules that fill its inputs."""
