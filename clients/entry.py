"""Where Flower's runtime comes in: the ClientApp, whose work is imported when there is some.

Flower starts a process for every message. Who a node is, is told without PyTorch, which takes
longer to import than all else.
"""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from clients.identity import own_id
from fedpart.machine import code_id

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which client this node is, of how many where it was told, and which code it runs."""
    answer = MetricRecord({"client-id": own_id(context), "code": code_id()})
    total = context.node_config.get("num-partitions")
    if isinstance(total, int):
        answer["num-clients"] = total
    return Message(RecordDict({"metrics": answer}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """See ``clients.app.train``."""
    from clients.app import train as work

    return work(message, context)
