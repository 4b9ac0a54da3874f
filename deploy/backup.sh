#!/bin/sh
# Copies what this machine alone holds, but for logs, into FOLDER, while everything runs:
#   backup.sh FOLDER
# Databases of registry and auditor in SQLite, and ZooKeeper's data. docs/deployment.md says how to restore them.
set -eu
to=$1
umask 077
mkdir -p "$to"
for service in registry auditor; do
  database=/var/lib/millrace/$service/$service.db
  [ ! -e "$database" ] || /opt/millrace/bin/python - "$database" "$to/$service.db" << 'END'
import sqlite3
import sys

source, target = map(sqlite3.connect, sys.argv[1:])
source.backup(target)
END
done
if [ -d /var/lib/zookeeper/version-2 ]; then
  mkdir -p "$to/zookeeper"
  # Snapshots first: what changes meanwhile is in the logs behind them. A torn last entry is left out at the start.
  for kind in snapshot log; do
    cp /var/lib/zookeeper/version-2/$kind.* "$to/zookeeper/"
  done
  for epoch in /var/lib/zookeeper/version-2/*Epoch; do
    [ ! -e "$epoch" ] || cp "$epoch" "$to/zookeeper/"  # only an ensemble has them
  done
fi
echo "copied to $to"
