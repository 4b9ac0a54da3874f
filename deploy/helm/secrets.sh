#!/bin/sh
# Makes what the chart's pods prove themselves with: FOLDER/NAMESPACE/COMPONENT becomes the Secret millrace-COMPONENT.
#   secrets.sh FOLDER AGGREGATE ORIGIN...      for example: secrets.sh secrets offline dc1 dc2
# Each cluster is in the namespace of its name, in a release called millrace. Keep FOLDER where no service runs:
# FOLDER/security has the authority's key.
set -euf
umask 077
mkdir "$1"
cd "$1"
shift
aggregate=$1

certificate() { # FILE HOST...: the authority's certificate for these hosts, and its key
  file=$1 hosts=
  shift
  for host in "$@"; do hosts="$hosts --host $host.svc"; done
  millrace security init security $hosts > /dev/null
  mv security/broker.pem "$file"
}

client() { # NAMESPACE/COMPONENT USER ROLE...: who a pod is to brokers, ZooKeeper and registry
  folder=$1 user=$2 name=$(echo "$1" | tr / -)
  shift 2
  mkdir -p "$folder"
  cp security/ca.pem "security/$user.password" "identities/$aggregate/clients.toml" "$folder"
  { cat "security/$user.toml"; echo 'zookeeper_identity = "clients.toml"'; } > "$folder/client.toml"
  printf 'https://%s:%s@millrace-registry.%s.svc:8081' \
    "$name" "$(millrace access add registry.toml "$name" "$@")" "$aggregate" > "$folder/registry"
}

millrace access add metrics.toml prometheus metrics read > token
for cluster in "$@"; do
  mkdir -p "$cluster/broker" "$cluster/metrics"
  certificate "$cluster/broker/certificate.pem" \
    "millrace-bootstrap.$cluster" "millrace-broker.$cluster" "*.millrace-broker.$cluster"
  millrace zookeeper identities "identities/$cluster" > /dev/null
  echo 'zookeeper_identity = "brokers.toml"' > "identities/$cluster/operator.toml"
  cp security/ca.pem security/broker.password "identities/$cluster/brokers.toml" "$cluster/broker"
  cp metrics.toml "$cluster/broker/access.toml"
  cp security/ca.pem token "$cluster/metrics"
  client "$cluster/audit-reader" reader read 'register:Audit*'
  certificate "$cluster/audit-reader/certificate.pem" "millrace-audit-reader.$cluster"
  cp metrics.toml "$cluster/audit-reader/access.toml"
  client "$cluster/admin" admin read register admin
done

cp security/mirror.password "$aggregate/broker"
client "$aggregate/audit-warehouse" reader read 'register:Audit*'
client "$aggregate/load" reader read
certificate "$aggregate/load/certificate.pem" "millrace-load.$aggregate"
cp metrics.toml "$aggregate/load/access.toml"
client "$aggregate/auditor" auditor read 'register:Audit*'
certificate "$aggregate/auditor/certificate.pem" "millrace-auditor.$aggregate"
printf 'https://admin:%s@millrace-auditor.%s.svc:8082' \
  "$(millrace access add auditor.toml admin read accept)" "$aggregate" > "$aggregate/admin/auditor"
cat metrics.toml auditor.toml > "$aggregate/auditor/access.toml"
mkdir "$aggregate/registry"
certificate "$aggregate/registry/certificate.pem" "millrace-registry.$aggregate"
cp "identities/$aggregate/clients.toml" "$aggregate/registry"
echo 'zookeeper_identity = "clients.toml"' > "$aggregate/registry/client.toml"
cat metrics.toml registry.toml > "$aggregate/registry/access.toml"
