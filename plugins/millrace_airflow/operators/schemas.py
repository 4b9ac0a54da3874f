"""RegisterSchemasOperator: the schemas in a folder, one subject per file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from millrace.errors import MillraceError
from millrace.escaping import escaped
from millrace_airflow.hooks.millrace import DEFAULT_CONN_ID, MillraceHook

if TYPE_CHECKING:
    from airflow.sdk import Context


class RegisterSchemasOperator(BaseOperator):
    """Registers every `*.avsc` file of a folder under its topic's subject. Returns {subject: schema id}.

    A schema that is registered already keeps its id. The registry refuses a schema with which readers could
    not read the old data; the task then fails with the registry's reason.
    """

    template_fields = ("schemas_dir", "conn_id")
    ui_color = "#f3ead3"

    def __init__(self, *, schemas_dir: str, conn_id: str = DEFAULT_CONN_ID, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.schemas_dir = schemas_dir
        self.conn_id = conn_id

    def execute(self, context: Context) -> dict[str, int | None]:
        """Register all schemas, or none of them when one cannot be registered."""
        from millrace_registry.client import RegistryUnavailable, SchemaRegistryClient
        from millrace_registry.directory import apply
        from millrace_registry.subjects import Subjects

        try:
            settings = MillraceHook(self.conn_id).get_conn()
            subjects = Subjects.of_environment(settings.subjects.split())
            with SchemaRegistryClient(settings.registry) as client:
                changes = apply(Path(self.schemas_dir), client, subjects=subjects)
        except RegistryUnavailable:
            raise
        except MillraceError as error:  # a user's mistake in a schema, which no retry corrects
            raise AirflowFailException(escaped(str(error))) from None
        for change in changes:
            self.log.info("%s: %s, id %s", change.subject, change.state, change.id)
        return {change.subject: change.id for change in changes}
