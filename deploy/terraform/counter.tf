# Overdue and unknown records, as the metrics once_records_overdue and once_records_unknown of the table.

data "archive_file" "counter" {
  type        = "zip"
  source_file = "${path.module}/open_records.py"
  output_path = "${path.root}/.terraform/once-open-records.zip"
}

data "aws_iam_policy_document" "counter" {
  statement {
    sid       = "OnceIndex"
    actions   = ["dynamodb:Query"]
    resources = ["${aws_dynamodb_table.this.arn}/index/open"]
  }
}

resource "aws_iam_role" "counter" {
  count              = var.count_open_records ? 1 : 0
  name_prefix        = "once-counter-"
  assume_role_policy = local.lambda_trust
  tags               = var.tags
}

resource "aws_iam_role_policy" "counter" {
  count  = var.count_open_records ? 1 : 0
  name   = "once-index"
  role   = aws_iam_role.counter[0].id
  policy = data.aws_iam_policy_document.counter.json
}

resource "aws_iam_role_policy_attachment" "counter_log" {
  count      = var.count_open_records ? 1 : 0
  role       = aws_iam_role.counter[0].name
  policy_arn = local.lambda_log_policy
}

resource "aws_lambda_function" "counter" {
  count            = var.count_open_records ? 1 : 0
  function_name    = "${var.table_name}-open-records"
  description      = "Counts the overdue and unknown records of a once store."
  runtime          = "python3.13"
  handler          = "open_records.handler"
  memory_size      = 128
  timeout          = 60
  role             = aws_iam_role.counter[0].arn
  filename         = data.archive_file.counter.output_path
  source_code_hash = data.archive_file.counter.output_base64sha256
  tags             = var.tags

  environment {
    variables = { TABLE = aws_dynamodb_table.this.name }
  }
}

resource "aws_cloudwatch_event_rule" "counter" {
  count               = var.count_open_records ? 1 : 0
  name                = "${var.table_name}-open-records"
  schedule_expression = "rate(5 minutes)"
  tags                = var.tags
}

resource "aws_cloudwatch_event_target" "counter" {
  count = var.count_open_records ? 1 : 0
  rule  = aws_cloudwatch_event_rule.counter[0].name
  arn   = aws_lambda_function.counter[0].arn
}

resource "aws_lambda_permission" "counter" {
  count         = var.count_open_records ? 1 : 0
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.counter[0].function_name
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.counter[0].arn
}
