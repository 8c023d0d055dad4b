# The table of a once store, the least policies for its users and, if wanted, a bucket for large results.

resource "aws_dynamodb_table" "this" {
  name                        = var.table_name
  billing_mode                = "PAY_PER_REQUEST"
  hash_key                    = "id"
  deletion_protection_enabled = var.deletion_protection
  tags                        = var.tags

  attribute {
    name = "id"
    type = "S"
  }

  attribute {
    name = "open"
    type = "S"
  }

  # Only records in progress, failed or unknown have the attribute.
  global_secondary_index {
    name            = "open"
    hash_key        = "open"
    projection_type = "ALL"
  }

  ttl {
    attribute_name = "expiration"
    enabled        = true
  }

  point_in_time_recovery {
    enabled = var.point_in_time_recovery
  }
}

resource "aws_s3_bucket" "results" {
  count  = var.results_bucket == null ? 0 : 1
  bucket = var.results_bucket
  tags   = var.tags
}

resource "aws_s3_bucket_lifecycle_configuration" "results" {
  count  = var.results_bucket == null ? 0 : 1
  bucket = aws_s3_bucket.results[0].id

  rule {
    id     = "expire"
    status = "Enabled"

    filter {}

    expiration {
      days = var.large_result_days
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }
}

resource "aws_s3_bucket_ownership_controls" "results" {
  count  = var.results_bucket == null ? 0 : 1
  bucket = aws_s3_bucket.results[0].id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_public_access_block" "results" {
  count                   = var.results_bucket == null ? 0 : 1
  bucket                  = aws_s3_bucket.results[0].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

# For programs that run operations: claims, finishes, replays.
data "aws_iam_policy_document" "worker" {
  statement {
    sid       = "OnceRecords"
    actions   = ["dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:DeleteItem", "dynamodb:DescribeTable"]
    resources = [aws_dynamodb_table.this.arn]
  }

  dynamic "statement" {
    for_each = aws_s3_bucket.results
    content {
      sid       = "OnceResults"
      actions   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
      resources = ["${statement.value.arn}/results/*"]
    }
  }
}

# In addition, for operators: once ls, stats, sweep, doctor, table check.
data "aws_iam_policy_document" "operator" {
  statement {
    sid = "OnceTable"
    actions = [
      "dynamodb:Scan",
      "dynamodb:DescribeTimeToLive",
      "dynamodb:DescribeContinuousBackups",
    ]
    resources = [aws_dynamodb_table.this.arn]
  }

  statement {
    sid       = "OnceIndex"
    actions   = ["dynamodb:Query"]
    resources = ["${aws_dynamodb_table.this.arn}/index/open"]
  }
}

resource "aws_iam_policy" "worker" {
  name_prefix = "${var.table_name}-worker-"
  description = "Runs operations under the protection of once."
  policy      = data.aws_iam_policy_document.worker.json
  tags        = var.tags
}

resource "aws_iam_policy" "operator" {
  name_prefix = "${var.table_name}-operator-"
  description = "Lists the records of once and looks at their table. Goes with the worker's policy."
  policy      = data.aws_iam_policy_document.operator.json
  tags        = var.tags
}
