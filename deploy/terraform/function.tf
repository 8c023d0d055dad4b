# A function that uses the store: its role, with the worker's policy and a log, and the function.

locals {
  partition         = split(":", aws_dynamodb_table.this.arn)[1]
  lambda_log_policy = "arn:${local.partition}:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"
  lambda_trust = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Principal = { Service = "lambda.amazonaws.com" }, Action = "sts:AssumeRole" }]
  })
}

resource "aws_iam_role" "function" {
  count              = var.function_zip == null ? 0 : 1
  name_prefix        = "once-function-"
  assume_role_policy = local.lambda_trust
  tags               = var.tags
}

resource "aws_iam_role_policy_attachment" "function_worker" {
  count      = var.function_zip == null ? 0 : 1
  role       = aws_iam_role.function[0].name
  policy_arn = aws_iam_policy.worker.arn
}

resource "aws_iam_role_policy_attachment" "function_log" {
  count      = var.function_zip == null ? 0 : 1
  role       = aws_iam_role.function[0].name
  policy_arn = local.lambda_log_policy
}

resource "aws_lambda_function" "this" {
  count            = var.function_zip == null ? 0 : 1
  function_name    = var.function_name
  runtime          = "provided.al2023"
  handler          = "bootstrap"
  architectures    = [var.function_architecture]
  memory_size      = 128
  timeout          = var.function_timeout
  role             = aws_iam_role.function[0].arn
  filename         = var.function_zip
  source_code_hash = filebase64sha256(var.function_zip)
  tags             = var.tags

  environment {
    variables = {
      ONCE_STORE   = local.store
      ONCE_METRICS = var.function_metrics ? "emf" : "off" # For once::lambda::metrics_from_environment().
    }
  }
}
