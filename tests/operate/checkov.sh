#!/usr/bin/env bash
# What checkov finds in the manifests, but for a list. CHECKOV: the program.
set -euo pipefail
cd "$(dirname "$0")/../.."
but=(
  CKV_K8S_11    # limits of CPU: a throttled worker holds up the step of all others
  CKV_K8S_15    # to pull the image at each start: it is pinned, and may be loaded by hand
  CKV_K8S_43    # an image by its digest: yours, in an overlay of your own
)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for root in overlays/small overlays/cluster overlays/test jobset; do
  kubectl kustomize "deploy/kubernetes/$root" >"$folder/$(basename "$root").yaml"
done
# Upon a service, whose namespace and image `job` is given.
mkdir "$folder/job" "$folder/standby"
cat >"$folder/job/kustomization.yaml" <<END
namespace: shoal
resources: [$(realpath --relative-to="$folder/job" deploy/kubernetes/job)]
images: [{name: shoal, newName: localhost/shoal, newTag: 0.1.0}]
END
cat >"$folder/standby/kustomization.yaml" <<END
resources: [$(realpath --relative-to="$folder/standby" deploy/kubernetes/overlays/small)]
components: [$(realpath --relative-to="$folder/standby" deploy/kubernetes/components/standby)]
END
for root in job standby; do
  kubectl kustomize "$folder/$root" >"$folder/$root.yaml"
  rm -r "${folder:?}/$root"
done
"$CHECKOV" --framework kubernetes --skip-download --quiet --compact --directory "$folder" \
  --skip-check "$(IFS=, && echo "${but[*]}")" --output json >"$folder/found.json" || true
python3 - "$folder/found.json" <<'PYTHON'
import json
import sys

found = json.load(open(sys.argv[1], encoding="utf-8"))
for each in found["results"]["failed_checks"]:
    print(f'{each["resource"]}: {each["check_id"]}: {each["check_name"]}')
print({key: found["summary"][key] for key in ("passed", "failed", "parsing_errors")})
sys.exit(bool(found["summary"]["failed"] or found["summary"]["parsing_errors"] or
              found["summary"]["passed"] < 100))
PYTHON
