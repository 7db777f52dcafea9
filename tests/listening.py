"""A channel that keeps what crosses it, message by message."""


class Listening:
    """Wraps one end of a channel."""

    def __init__(self, channel):
        self._channel, self.sent, self.received = channel, [], []

    def __getattr__(self, name):
        return getattr(self._channel, name)

    def send(self, message):
        self.sent.append(message)
        self._channel.send(message)

    def receive(self, kind, **more):
        self.received.append(self._channel.receive(kind, **more))
        return self.received[-1]
