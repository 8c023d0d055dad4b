// Stacks with the constructs of deploy/cdk: without and with the bucket, without and with alarms, with the counter. The
// folder is named by CDK_OUTDIR.
import { App, Stack } from "aws-cdk-lib";
import * as iam from "aws-cdk-lib/aws-iam";
import * as lambda from "aws-cdk-lib/aws-lambda";
import * as sns from "aws-cdk-lib/aws-sns";
import { OnceAlarms } from "./once-alarms";
import { OnceCounter } from "./once-counter";
import { OnceTable } from "./once-table";

const app = new App();
for (const largeResults of [false, true]) {
  const stack = new Stack(app, largeResults ? "Large" : "Plain");
  const table = new OnceTable(stack, "Once", { tableName: "once", largeResults });
  table.grantWorker(new iam.Role(stack, "Worker", { assumedBy: new iam.AccountRootPrincipal() }));
  table.grantOperator(new iam.Role(stack, "Operator", { assumedBy: new iam.AccountRootPrincipal() }));
}
for (const [name, topic] of [["Alarms", "arn:aws:sns:eu-central-1:123456789012:ops"], ["QuietAlarms", ""]]) {
  const stack = new Stack(app, name);
  const pay = new lambda.Function(stack, "Pay", {
    functionName: "pay",
    code: lambda.Code.fromInline("-"),
    handler: "index.handler",
    runtime: lambda.Runtime.NODEJS_LATEST,
  });
  if (topic) {
    new OnceAlarms(stack, "Alarms", { function: pay, topic: sns.Topic.fromTopicArn(stack, "Topic", topic) });
  } else {
    new OnceAlarms(stack, "Alarms", { function: pay, nothingStartedHours: 0, runningAtOnce: 7 });
  }
}
const counted = new Stack(app, "Counter");
new OnceCounter(counted, "Counter", { once: new OnceTable(counted, "Once", { tableName: "once" }) });
app.synth();
