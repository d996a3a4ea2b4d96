"""How recorded runs travel: messages, frames, the file in which they wait, and the link to the server."""
