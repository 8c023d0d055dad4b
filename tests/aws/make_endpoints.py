"""Writes data/endpoints.json: where botocore's rules put each service that we call, for wire_endpoint_test.cpp.

    $(tools/python-tools) tests/aws/make_endpoints.py

{"botocore": VERSION, "hosts": {SERVICE: {REGION: [plain, dual-stack, FIPS, both]}}}; null: the rules refuse it. S3's are
those of a bucket named "bucket".
"""
import gzip
import json
import pathlib

import botocore
from botocore.endpoint_provider import EndpointProvider
from botocore.exceptions import EndpointProviderError

DATA = pathlib.Path(botocore.__file__).parent / "data"
PARTITIONS = json.loads((DATA / "partitions.json").read_text())
VARIANTS = [(fips, dual) for fips in (False, True) for dual in (False, True)]


def rules(service):
    newest = max((DATA / service).iterdir())
    return EndpointProvider(json.loads(gzip.decompress((newest / "endpoint-rule-set-1.json.gz").read_bytes())), PARTITIONS)


def host(provider, service, region, fips, dual):
    given = {"Region": region, "UseFIPS": fips, "UseDualStack": dual}
    if service == "s3":
        given["Bucket"] = "bucket"
    try:
        return provider.resolve_endpoint(**given).url.removeprefix("https://")
    except EndpointProviderError:
        return None


def main():
    # Names without digits stand for a whole partition: "aws-global".
    regions = sorted(region for partition in PARTITIONS["partitions"] for region in partition["regions"]
                     if region[-1].isdigit())
    hosts = {}
    for service in ("dynamodb", "kms", "s3", "sqs", "sts"):
        provider = rules(service)
        # One that opens after this table was made: by its name alone.
        hosts[service] = {region: [host(provider, service, region, *variant) for variant in VARIANTS]
                          for region in [*regions, "eu-somewhere-9", "cn-somewhere-9", "eusc-de-west-9", "mars-1"]}
    lines = [f'  "{service}": {{\n' + ",\n".join(f'    "{region}": {json.dumps(row)}' for region, row in rows.items()) + "\n  }"
             for service, rows in hosts.items()]
    text = f'{{"botocore": "{botocore.__version__}", "hosts": {{\n' + ",\n".join(lines) + "\n}}\n"
    json.loads(text)
    (pathlib.Path(__file__).parent / "data/endpoints.json").write_text(text)


main()
