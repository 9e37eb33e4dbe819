import jsonschema
import pytest
from pydantic import ValidationError

from fedpart.records import FILES, SCHEMAS, EvaluationRecord, schema


@pytest.mark.parametrize("name", list(FILES))
def test_committed_schemas_are_those_of_the_models(name):
    """Write them anew by ``python -m fedpart.records``."""
    assert (SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8") == schema(name)


@pytest.mark.parametrize("name", list(FILES))
def test_schemas_are_schemas(name):
    import json

    jsonschema.Draft202012Validator.check_schema(json.loads(schema(name)))


def test_records_refuse_what_does_not_belong():
    fields = {"round": 1, "num_images": 5, "val_accuracy": 0.5, "val_loss": 1.0, "l_ml": None}
    EvaluationRecord(**fields, subnetworks=[])
    with pytest.raises(ValidationError):
        EvaluationRecord(**fields, subnetworks=[], extra=1)
    with pytest.raises(ValidationError):
        EvaluationRecord(**(fields | {"val_accuracy": 50}), subnetworks=[])
