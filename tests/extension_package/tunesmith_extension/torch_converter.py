"""What the operator of torch becomes in a graph."""


def squared_relu(call, x):
    return call.emit("squared_relu", x)
