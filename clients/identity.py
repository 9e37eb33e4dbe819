"""Who a node is."""

from flwr.app import Context


def own_id(context: Context) -> int:
    """Which client this node is: Flower's ``partition-id``, here and nowhere else.

    Raises:
        ValueError: the node was started without one.
    """
    number = context.node_config.get("partition-id")
    if not isinstance(number, int):
        raise ValueError(
            "node config lacks partition-id: start the node with partition-id=<client>"
        )
    return number
