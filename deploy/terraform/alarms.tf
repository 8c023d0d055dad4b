# Alarms on the metrics that a function writes with once::lambda::EmbeddedMetrics.

locals {
  # Alarms on one metric each.
  metric_alarms = {
    nothing_started = {
      about      = "no operation began in the last hours. What to do: docs/handbook.md#nothing-started"
      metric     = "once_claims_total", period = 3600, periods = var.nothing_started_hours
      comparison = "LessThanThreshold", threshold = 1, missing = "breaching"
    }
    not_recorded = {
      about      = "results could not be written at first. What to do: docs/handbook.md#result-not-recorded"
      metric     = "once_unrecorded_total", period = 300, periods = 1
      comparison = "GreaterThanThreshold", threshold = 0, missing = "notBreaching"
    }
    ran_unprotected = {
      about      = "work ran without a claim, so a retry runs it again. What to do: docs/handbook.md#ran-unprotected"
      metric     = "once_operations_total_unprotected", period = 300, periods = 1
      comparison = "GreaterThanThreshold", threshold = 0, missing = "notBreaching"
    }
  }
  # Alarms on an expression of several metrics, by their ids in it.
  expression_alarms = {
    started_not_ended = {
      about     = "more operations began in an hour than ended. What to do: docs/handbook.md#started-but-not-ended"
      threshold = var.running_at_once
      period    = 3600
      expression = join(" - ", [
        "0.9 * FILL(started, 0)", "FILL(completed, 0)", "FILL(failed, 0)", "FILL(released, 0)", "FILL(held, 0)",
        "FILL(abandoned, 0)", "FILL(refused, 0)",
      ])
      metrics = {
        started   = "once_claims_total"
        completed = "once_operations_total_completed"
        failed    = "once_operations_total_failed"
        released  = "once_operations_total_released"
        held      = "once_operations_total_held"
        abandoned = "once_operations_total_abandoned"
        refused   = "once_operations_total_finish_refused"
      }
    }
    failures = {
      about      = "failures were stored, and are replayed. What to do: docs/handbook.md#failures"
      threshold  = 5
      period     = 600
      expression = "FILL(failed, 0) - 0.1 * FILL(completed, 0)"
      metrics    = { failed = "once_operations_total_failed", completed = "once_operations_total_completed" }
    }
    outcome_unknown = {
      about      = "operations wait for a decision. What to do: docs/handbook.md#unknown-outcome"
      threshold  = 0
      period     = 300
      expression = "FILL(held, 0) + FILL(unknown, 0)"
      metrics    = { held = "once_operations_total_held", unknown = "once_operations_total_unknown" }
    }
  }
  alarm_actions = var.alarm_topic_arn == null ? [] : [var.alarm_topic_arn]
}

resource "aws_cloudwatch_metric_alarm" "metric" {
  for_each = {
    for name, alarm in local.metric_alarms : name => alarm if var.alarm_function != null && alarm.periods != 0
  }
  alarm_name          = "${var.alarm_function}-once-${replace(each.key, "_", "-")}"
  alarm_description   = "once: ${each.value.about}"
  namespace           = "once"
  metric_name         = each.value.metric
  dimensions          = { FunctionName = var.alarm_function }
  unit                = "Count"
  statistic           = "Sum"
  period              = each.value.period
  evaluation_periods  = each.value.periods
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  treat_missing_data  = each.value.missing
  alarm_actions       = local.alarm_actions
  tags                = var.tags
}

resource "aws_cloudwatch_metric_alarm" "expression" {
  for_each            = { for name, alarm in local.expression_alarms : name => alarm if var.alarm_function != null }
  alarm_name          = "${var.alarm_function}-once-${replace(each.key, "_", "-")}"
  alarm_description   = "once: ${each.value.about}"
  evaluation_periods  = 1
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.threshold
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
  tags                = var.tags

  metric_query {
    id          = "result"
    return_data = true
    expression  = each.value.expression
  }

  dynamic "metric_query" {
    for_each = each.value.metrics
    content {
      id = metric_query.key

      metric {
        namespace   = "once"
        metric_name = metric_query.value
        dimensions  = { FunctionName = var.alarm_function }
        unit        = "Count"
        stat        = "Sum"
        period      = each.value.period
      }
    }
  }
}
