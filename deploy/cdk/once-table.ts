// The table of a once store, the least permissions for its users and, if wanted, a bucket for large results.
import { Duration, RemovalPolicy, Stack } from "aws-cdk-lib";
import * as dynamodb from "aws-cdk-lib/aws-dynamodb";
import * as iam from "aws-cdk-lib/aws-iam";
import * as s3 from "aws-cdk-lib/aws-s3";
import { Construct } from "constructs";

export interface OnceTableProps {
  /** Default: made by CloudFormation. */
  readonly tableName?: string;
  /** Refuse to delete the table. Without its records every operation runs again. Default: true. */
  readonly deletionProtection?: boolean;
  /** Keep the table's history for 35 days, to bring back what was lost. Costs by size. Default: false. */
  readonly pointInTimeRecovery?: boolean;
  /** Make a bucket for results that are too large for an item of 400 KB. Default: false. */
  readonly largeResults?: boolean;
  /** After how many days a large result is deleted: more than the longest retention of a record. Default: 8. */
  readonly largeResultDays?: number;
}

export class OnceTable extends Construct {
  readonly table: dynamodb.Table;
  readonly results?: s3.Bucket;
  /** For --store and ONCE_STORE. */
  readonly storeUrl: string;

  constructor(scope: Construct, id: string, props: OnceTableProps = {}) {
    super(scope, id);
    this.table = new dynamodb.Table(this, "Table", {
      tableName: props.tableName,
      billingMode: dynamodb.BillingMode.PAY_PER_REQUEST,
      partitionKey: { name: "id", type: dynamodb.AttributeType.STRING },
      timeToLiveAttribute: "expiration",
      deletionProtection: props.deletionProtection ?? true,
      pointInTimeRecoverySpecification: { pointInTimeRecoveryEnabled: props.pointInTimeRecovery ?? false },
      removalPolicy: RemovalPolicy.RETAIN,
    });
    // Only records in progress, failed or unknown have the attribute.
    this.table.addGlobalSecondaryIndex({
      indexName: "open",
      partitionKey: { name: "open", type: dynamodb.AttributeType.STRING },
      projectionType: dynamodb.ProjectionType.ALL,
    });
    this.storeUrl = `dynamodb://${this.table.tableName}?region=${Stack.of(this).region}`;
    if (props.largeResults) {
      this.results = new s3.Bucket(this, "Results", {
        blockPublicAccess: s3.BlockPublicAccess.BLOCK_ALL,
        objectOwnership: s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
        lifecycleRules: [
          {
            id: "expire",
            expiration: Duration.days(props.largeResultDays ?? 8),
            abortIncompleteMultipartUploadAfter: Duration.days(1),
          },
        ],
        removalPolicy: RemovalPolicy.RETAIN,
      });
      this.storeUrl += `&offload=s3://${this.results.bucketName}/results?region=${Stack.of(this).region}`;
    }
  }

  /** For whoever runs operations: claims, finishes, replays. */
  grantWorker(grantee: iam.IGrantable): void {
    this.workerStatements().forEach((statement) => grantee.grantPrincipal.addToPrincipalPolicy(statement));
  }

  /** For whoever looks after records as well: once ls, stats, sweep, doctor, table check. */
  grantOperator(grantee: iam.IGrantable): void {
    this.grantWorker(grantee);
    this.operatorStatements().forEach((statement) => grantee.grantPrincipal.addToPrincipalPolicy(statement));
  }

  private workerStatements(): iam.PolicyStatement[] {
    const statements = [
      new iam.PolicyStatement({
        sid: "OnceRecords",
        actions: ["dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:DeleteItem", "dynamodb:DescribeTable"],
        resources: [this.table.tableArn],
      }),
    ];
    if (this.results) {
      statements.push(
        new iam.PolicyStatement({
          sid: "OnceResults",
          actions: ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
          resources: [this.results.arnForObjects("results/*")],
        }),
      );
    }
    return statements;
  }

  private operatorStatements(): iam.PolicyStatement[] {
    return [
      new iam.PolicyStatement({
        sid: "OnceTable",
        actions: [
          "dynamodb:Scan",
          "dynamodb:DescribeTimeToLive",
          "dynamodb:DescribeContinuousBackups",
        ],
        resources: [this.table.tableArn],
      }),
      new iam.PolicyStatement({
        sid: "OnceIndex",
        actions: ["dynamodb:Query"],
        resources: [`${this.table.tableArn}/index/open`],
      }),
    ];
  }
}
