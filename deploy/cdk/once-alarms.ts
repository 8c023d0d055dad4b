// Alarms on the metrics that a function writes with once::lambda::EmbeddedMetrics. docs/handbook.md says what to do.
import { Duration } from "aws-cdk-lib";
import * as cloudwatch from "aws-cdk-lib/aws-cloudwatch";
import { SnsAction } from "aws-cdk-lib/aws-cloudwatch-actions";
import * as lambda from "aws-cdk-lib/aws-lambda";
import * as sns from "aws-cdk-lib/aws-sns";
import { Construct } from "constructs";

export interface OnceAlarmsProps {
  /** Writes its metrics: ONCE_METRICS=emf among its variables, or EmbeddedMetrics in its code. */
  readonly function: lambda.IFunction;
  /** What the alarms tell. Default: nobody. */
  readonly topic?: sns.ITopic;
  /** After how many hours without a new operation there is an alarm, 1 to 24. 0: never. Default: 24. */
  readonly nothingStartedHours?: number;
  /** How many operations usually run at once. So many may have begun and not ended. Default: 0. */
  readonly runningAtOnce?: number;
}

interface Rule {
  readonly metrics: Record<string, string>;
  /** Default: the only metric. */
  readonly expression?: string;
  readonly minutes: number;
  readonly periods?: number;
  /** Default: more than 0. */
  readonly threshold?: number;
  /** Also if there is no value. Default: false. */
  readonly ifLess?: boolean;
}

export class OnceAlarms extends Construct {
  constructor(scope: Construct, id: string, private readonly props: OnceAlarmsProps) {
    super(scope, id);
    const outcome = (name: string) => `once_operations_total_${name}`;
    const hours = props.nothingStartedHours ?? 24;
    if (hours > 0) {
      this.add("NothingStarted", "no operation began in the last hours.", "nothing-started", {
        metrics: { started: "once_claims_total" },
        minutes: 60,
        periods: hours,
        threshold: 1,
        ifLess: true,
      });
    }
    this.add("StartedNotEnded", "more operations began in an hour than ended.", "started-but-not-ended", {
      metrics: {
        started: "once_claims_total",
        completed: outcome("completed"),
        failed: outcome("failed"),
        released: outcome("released"),
        held: outcome("held"),
        abandoned: outcome("abandoned"),
        refused: outcome("finish_refused"),
      },
      expression:
        "0.9 * FILL(started, 0) - FILL(completed, 0) - FILL(failed, 0) - FILL(released, 0) - FILL(held, 0) " +
        "- FILL(abandoned, 0) - FILL(refused, 0)",
      minutes: 60,
      threshold: props.runningAtOnce ?? 0,
    });
    this.add("Failures", "failures were stored, and are replayed.", "failures", {
      metrics: { failed: outcome("failed"), completed: outcome("completed") },
      expression: "FILL(failed, 0) - 0.1 * FILL(completed, 0)",
      minutes: 10,
      threshold: 5,
    });
    this.add("OutcomeUnknown", "operations wait for a decision.", "unknown-outcome", {
      metrics: { held: outcome("held"), unknown: outcome("unknown") },
      expression: "FILL(held, 0) + FILL(unknown, 0)",
      minutes: 5,
    });
    this.add("NotRecorded", "results could not be written at first.", "result-not-recorded", {
      metrics: { unrecorded: "once_unrecorded_total" },
      minutes: 5,
    });
    this.add("RanUnprotected", "work ran without a claim, so a retry runs it again.", "ran-unprotected", {
      metrics: { unprotected: outcome("unprotected") },
      minutes: 5,
    });
  }

  private add(id: string, what: string, section: string, rule: Rule): void {
    const period = Duration.minutes(rule.minutes);
    const metrics: Record<string, cloudwatch.IMetric> = {};
    for (const [name, metricName] of Object.entries(rule.metrics)) {
      metrics[name] = new cloudwatch.Metric({
        namespace: "once",
        metricName,
        dimensionsMap: { FunctionName: this.props.function.functionName },
        unit: cloudwatch.Unit.COUNT,
        statistic: cloudwatch.Stats.SUM,
        period,
      });
    }
    const alarm = new cloudwatch.Alarm(this, id, {
      alarmDescription: `once: ${what} What to do: docs/handbook.md#${section}`,
      metric:
        rule.expression === undefined
          ? Object.values(metrics)[0]
          : new cloudwatch.MathExpression({ expression: rule.expression, usingMetrics: metrics, period }),
      evaluationPeriods: rule.periods ?? 1,
      threshold: rule.threshold ?? 0,
      comparisonOperator: rule.ifLess
        ? cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD
        : cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
      treatMissingData: rule.ifLess
        ? cloudwatch.TreatMissingData.BREACHING
        : cloudwatch.TreatMissingData.NOT_BREACHING,
    });
    if (this.props.topic) alarm.addAlarmAction(new SnsAction(this.props.topic));
  }
}
