// Stacks with the construct of deploy/cdk, without and with the bucket. The folder is named by CDK_OUTDIR.
import { App, Stack } from "aws-cdk-lib";
import * as iam from "aws-cdk-lib/aws-iam";
import { OnceTable } from "./once-table";

const app = new App();
for (const largeResults of [false, true]) {
  const stack = new Stack(app, largeResults ? "Large" : "Plain");
  const table = new OnceTable(stack, "Once", { tableName: "once", largeResults });
  table.grantWorker(new iam.Role(stack, "Worker", { assumedBy: new iam.AccountRootPrincipal() }));
  table.grantOperator(new iam.Role(stack, "Operator", { assumedBy: new iam.AccountRootPrincipal() }));
}
app.synth();
