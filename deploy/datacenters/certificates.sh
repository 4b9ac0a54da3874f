#!/bin/sh
# Makes an authority and certificates that it signs, for listeners of protocol SSL:
#   certificates.sh FOLDER NAME...
# A broker's NAME is the host that its file advertises; a service's NAME is what the service is called.
# FOLDER/ca.key signs everything: keep it where no service runs. A second call adds names to the same authority.
set -eu
folder=$1
shift
umask 077
mkdir -p "$folder"
cd "$folder"
if [ ! -e ca.key ]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout ca.key -out ca.pem \
    -days 3650 -subj "/CN=Millrace authority" 2>/dev/null
fi
for name in "$@"; do
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$name.key" -out "$name.csr" \
    -subj "/CN=$name" 2>/dev/null
  printf 'subjectAltName=DNS:%s\n' "$name" > "$name.ext"
  openssl x509 -req -in "$name.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 365 -extfile "$name.ext" \
    -out "$name.pem" 2>/dev/null
  rm "$name.csr" "$name.ext"
  echo "$name.pem and $name.key are good for 365 days"
done
chmod 644 ./*.pem
