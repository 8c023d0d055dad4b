# Alarms on the metrics that a function writes with once::lambda::EmbeddedMetrics.

resource "aws_cloudwatch_metric_alarm" "nothing_started" {
  count               = var.alarm_function == null || var.nothing_started_hours == 0 ? 0 : 1
  alarm_name          = "${var.alarm_function}-once-nothing-started"
  alarm_description   = "once: no operation began in the last hours. What to do: docs/handbook.md#nothing-started"
  namespace           = "once"
  metric_name         = "once_claims_total"
  dimensions          = { FunctionName = var.alarm_function }
  unit                = "Count"
  statistic           = "Sum"
  period              = 3600
  evaluation_periods  = var.nothing_started_hours
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  treat_missing_data  = "breaching"
  alarm_actions       = var.alarm_topic_arn == null ? [] : [var.alarm_topic_arn]
  tags                = var.tags
}

resource "aws_cloudwatch_metric_alarm" "started_not_ended" {
  count               = var.alarm_function == null ? 0 : 1
  alarm_name          = "${var.alarm_function}-once-started-not-ended"
  alarm_description   = "once: more operations began in an hour than ended. What to do: docs/handbook.md#started-but-not-ended"
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = var.running_at_once
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == null ? [] : [var.alarm_topic_arn]
  tags                = var.tags

  metric_query {
    id          = "result"
    return_data = true
    expression  = join(" - ", [
      "0.9 * FILL(started, 0)", "FILL(completed, 0)", "FILL(failed, 0)", "FILL(released, 0)", "FILL(held, 0)",
      "FILL(abandoned, 0)", "FILL(refused, 0)",
    ])
  }

  dynamic "metric_query" {
    for_each = {
      started   = "once_claims_total"
      completed = "once_operations_total_completed"
      failed    = "once_operations_total_failed"
      released  = "once_operations_total_released"
      held      = "once_operations_total_held"
      abandoned = "once_operations_total_abandoned"
      refused   = "once_operations_total_finish_refused"
    }
    content {
      id = metric_query.key

      metric {
        namespace   = "once"
        metric_name = metric_query.value
        dimensions  = { FunctionName = var.alarm_function }
        unit        = "Count"
        stat        = "Sum"
        period      = 3600
      }
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "failures" {
  count               = var.alarm_function == null ? 0 : 1
  alarm_name          = "${var.alarm_function}-once-failures"
  alarm_description   = "once: failures were stored, and are replayed. What to do: docs/handbook.md#failures"
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 5
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == null ? [] : [var.alarm_topic_arn]
  tags                = var.tags

  metric_query {
    id          = "result"
    return_data = true
    expression  = "FILL(failed, 0) - 0.1 * FILL(completed, 0)"
  }

  dynamic "metric_query" {
    for_each = {
      failed    = "once_operations_total_failed"
      completed = "once_operations_total_completed"
    }
    content {
      id = metric_query.key

      metric {
        namespace   = "once"
        metric_name = metric_query.value
        dimensions  = { FunctionName = var.alarm_function }
        unit        = "Count"
        stat        = "Sum"
        period      = 600
      }
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "outcome_unknown" {
  count               = var.alarm_function == null ? 0 : 1
  alarm_name          = "${var.alarm_function}-once-outcome-unknown"
  alarm_description   = "once: operations wait for a decision. What to do: docs/handbook.md#unknown-outcome"
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == null ? [] : [var.alarm_topic_arn]
  tags                = var.tags

  metric_query {
    id          = "result"
    return_data = true
    expression  = "FILL(held, 0) + FILL(unknown, 0)"
  }

  dynamic "metric_query" {
    for_each = {
      held    = "once_operations_total_held"
      unknown = "once_operations_total_unknown"
    }
    content {
      id = metric_query.key

      metric {
        namespace   = "once"
        metric_name = metric_query.value
        dimensions  = { FunctionName = var.alarm_function }
        unit        = "Count"
        stat        = "Sum"
        period      = 300
      }
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "not_recorded" {
  count               = var.alarm_function == null ? 0 : 1
  alarm_name          = "${var.alarm_function}-once-not-recorded"
  alarm_description   = "once: results could not be written at first. What to do: docs/handbook.md#result-not-recorded"
  namespace           = "once"
  metric_name         = "once_unrecorded_total"
  dimensions          = { FunctionName = var.alarm_function }
  unit                = "Count"
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == null ? [] : [var.alarm_topic_arn]
  tags                = var.tags
}

resource "aws_cloudwatch_metric_alarm" "ran_unprotected" {
  count               = var.alarm_function == null ? 0 : 1
  alarm_name          = "${var.alarm_function}-once-ran-unprotected"
  alarm_description   = "once: work ran without a claim, so a retry runs it again. What to do: docs/handbook.md#ran-unprotected"
  namespace           = "once"
  metric_name         = "once_operations_total_unprotected"
  dimensions          = { FunctionName = var.alarm_function }
  unit                = "Count"
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = var.alarm_topic_arn == null ? [] : [var.alarm_topic_arn]
  tags                = var.tags
}
