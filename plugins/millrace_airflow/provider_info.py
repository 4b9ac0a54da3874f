"""This package's metadata for Airflow, for the entry point `apache_airflow_provider`.

Holds data only. Airflow imports the classes that it names when it needs them.
"""

from __future__ import annotations

from typing import Any

_PACKAGE = "millrace_airflow"
_INTEGRATION = "Millrace"


def get_provider_info() -> dict[str, Any]:
    """Return the provider metadata in the shape of Airflow's provider_info.schema.json."""
    return {
        "package-name": "millrace-pipeline",
        "name": "Millrace",
        "description": "Load event streams into the warehouse; publish an hour once it is proved complete.",
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        "hooks": [_modules("hooks.millrace")],
        "operators": [
            _modules("operators.load", "operators.publish", "operators.schemas", "operators.upkeep")
        ],
        "sensors": [_modules("sensors.completeness")],
        "triggers": [_modules("triggers.completeness", "triggers.job")],
        "connection-types": [_connection_type()],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}


def _connection_type() -> dict[str, Any]:
    return {
        "connection-type": "millrace",
        "hook-class-name": f"{_PACKAGE}.hooks.millrace.MillraceHook",
        "hook-name": "Millrace",
        "ui-field-behaviour": {
            "hidden-fields": ["schema", "extra"],
            "relabeling": {"host": "Brokers", "login": "User at the brokers", "password": "Its password"},
            "placeholders": {
                "host": "brokers of the aggregate cluster: HOST:PORT,HOST:PORT",
                "registry": "http://127.0.0.1:8081",
                "auditor": "http://127.0.0.1:8082",
                "warehouse": "hdfs://namenode:8020/warehouse",
                "origins": '{"dc1": "HOST:PORT"}',
            },
        },
        "conn-fields": {
            "registry": _required("Schema registry", "URL of the schema registry."),
            "auditor": _required("Auditor", "URL of the auditor."),
            "registry_token": _secret(
                "Registry token", "Token of the user in the registry's URL, https://USER@HOST."
            ),
            "auditor_token": _secret(
                "Auditor token", "Token of the user in the auditor's URL, https://USER@HOST."
            ),
            "warehouse": _required("Warehouse", "Path or URI of the folder that holds the tables."),
            "subjects": _field(
                "Subjects", "How subjects are named: topic (default), topic-value, record, TOPIC=SUBJECT."
            ),
            "origins": _field("Origins", "JSON: brokers of each datacenter's cluster, by its name."),
            "spark_master": _field("Spark master", "Where Spark jobs are submitted to; default: local."),
            "spark_ui": _field(
                "Spark UI", "URL of the Spark cluster's web UI or history server, to which tasks link."
            ),
            "catalog": _field(
                "Catalog", "Iceberg catalog of pyiceberg's configuration; default: a local warehouse's own."
            ),
            "protocol": _field(
                "Security protocol", "Protocol of the brokers: PLAINTEXT (default), SSL or SASL_SSL."
            ),
            "ca": _field(
                "CA file", "PEM file on the workers with the authority of the brokers' certificates."
            ),
            "mechanism": _field("SASL mechanism", "SCRAM-SHA-512 (default), SCRAM-SHA-256 or PLAIN."),
            "client_file": _field(
                "Client file",
                "Path on the workers and Spark's executors; replaces user, password and protocol.",
            ),
            "job_dir": _field(
                "Job folder", "Logs of running jobs; workers and triggerers need the same one."
            ),
        },
    }


def _field(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"]}}


def _required(label: str, description: str) -> dict[str, Any]:
    """Return a field that may not be null: Airflow's form does not save a connection without it."""
    return {"label": label, "description": description, "schema": {"type": "string"}}


def _secret(label: str, description: str) -> dict[str, Any]:
    field = _field(label, description)
    return {**field, "schema": {**field["schema"], "format": "password"}}
