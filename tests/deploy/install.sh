#!/bin/sh
# Puts what the tests of deploy/ need into a folder: promtool, helm, ansible, schemas of Kubernetes, a Debian to build
# the image on, for which it installs buildah and mmdebstrap. What cannot be had is said here, and its tests are skipped
# by name.
#   install.sh FOLDER
set -u
folder=$(mkdir -p "$1/bin" && cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)

try() { # NAME COMMAND...
  name=$1
  shift
  "$@" > "$folder/$name.log" 2>&1 || echo "$name could not be installed: see $folder/$name.log" >&2
}

promtool() ( # Debian's package, without installing it
  set -e
  cd "$folder"
  apt-get download prometheus
  dpkg-deb --fsys-tarfile prometheus_*.deb | tar --extract --strip-components=2 ./usr/bin/promtool # bin/promtool
  rm prometheus_*.deb
)

go_program() { # PACKAGE@VERSION
  GOBIN="$folder/bin" PATH="$PATH:/usr/local/go/bin" go install "$1"
}

python_tools() {
  "${PYTHON:-python3}" -m venv "$folder/python" &&
    "$folder/python/bin/pip" install --disable-pip-version-check --quiet --requirement "$here/requirements.txt"
}

debian() ( # with Python, from the packages that this machine takes its own from
  set -e
  { command -v buildah && command -v mmdebstrap; } ||
    apt-get install --yes --no-install-recommends buildah mmdebstrap
  sources=$(ls /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources 2> /dev/null | tail -n 1)
  mmdebstrap --variant=minbase --include=python3-venv,ca-certificates bookworm "$folder/base.new.tar" "$sources"
  mv "$folder/base.new.tar" "$folder/base.tar"
)

[ -f "$folder/base.tar" ] || try debian debian
[ -x "$folder/bin/promtool" ] || try promtool promtool
[ -x "$folder/bin/helm" ] || try helm go_program helm.sh/helm/v3/cmd/helm@v3.19.0
try python python_tools
