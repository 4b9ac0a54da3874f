#!/bin/sh
# Makes what the machines of docs/deployment.md prove themselves with: FOLDER/MACHINE is /etc/millrace/security there.
#   secrets.sh FOLDER SERVICE...      a SERVICE is a machine with an agent, which takes events with FOLDER/SERVICE.token
# Keep FOLDER where no service runs: FOLDER/security has the authority's key, FOLDER/operator.env an operator's variables.
set -euf
umask 077
mkdir "$1"
cd "$1"
shift

certificate() { # MACHINE HOST...: the authority's certificate for these hosts, and its key
  machine=$1 hosts=
  shift
  for host in "$@"; do hosts="$hosts --host $host"; done
  mkdir "$machine"
  millrace security init security $hosts > /dev/null
  mv security/broker.pem "$machine/certificate.pem"
  cp security/ca.pem "$machine"
}

client() { # MACHINE USER: who a process is to brokers and to offline's ZooKeeper
  cp "security/$2.password" identities/offline/clients.toml "$1"
  { cat "security/$2.toml"; echo 'zookeeper_identity = "clients.toml"'; } > "$1/$2.toml"
}

url() { # ACCESS-FILE PORT NAME ROLE...: a service's URL with a token
  file=$1 port=$2
  shift 2
  echo "https://$1:$(millrace access add "$file" "$@")@10.9.0.4:$port"
}

millrace access add metrics.toml prometheus metrics read > prometheus.token
for each in offline:10.9.0 dc1:10.1.0 dc2:10.2.0; do
  cluster=${each%:*}
  millrace zookeeper identities "identities/$cluster" > /dev/null
  echo 'zookeeper_identity = "brokers.toml"' > "identities/$cluster/operator.toml"
  for number in 1 2 3; do
    machine=$cluster-$number
    certificate "$machine" "$machine.example.com" "${each#*:}.$number"
    cp security/broker.password "identities/$cluster/brokers.toml" "$machine"
    cp metrics.toml "$machine/access.toml"
    [ "$cluster" != offline ] || cp security/mirror.password "$machine"
    [ "$number" = 3 ] && continue
    client "$machine" reader
    echo "MILLRACE_REGISTRY=$(url registry.toml 8081 "$machine" read 'register:Audit*')" > "$machine/secrets.env"
  done
done
certificate offline-4 offline-4.example.com 10.9.0.4
client offline-4 reader
client offline-4 auditor
echo "MILLRACE_REGISTRY=$(url registry.toml 8081 offline-4 read 'register:Audit*')" > offline-4/secrets.env
for machine in "$@"; do
  certificate "$machine" "$machine" localhost 127.0.0.1
  cp security/producer.toml security/producer.password "$machine"
  echo "MILLRACE_REGISTRY=$(url registry.toml 8081 "$machine" read 'register:Audit*')" > "$machine/secrets.env"
  cp metrics.toml "$machine/access.toml"
  millrace access add "$machine/access.toml" "$machine" write > "$machine.token"
done
cat > operator.env <<OPERATOR
MILLRACE_CLIENT=$PWD/security/admin.toml
SSL_CERT_FILE=$PWD/security/ca.pem
MILLRACE_REGISTRY=$(url registry.toml 8081 operator read register admin)
MILLRACE_AUDITOR=$(url auditor.toml 8082 operator read accept)
OPERATOR
cat metrics.toml registry.toml > offline-4/registry-access.toml
cat metrics.toml auditor.toml > offline-4/auditor-access.toml
