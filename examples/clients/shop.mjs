// A shop on Express. An order that is posted twice is charged once.
//
//   npm install once-idempotency express
//   node shop.mjs
//   curl localhost:8000/orders -H 'X-Api-Key: alice' -H 'Idempotency-Key: order-17' --json '{"id": "17", "cents": 4000}'
//
// ONCE_STORE names the store; for several hosts it is PostgreSQL or DynamoDB.
import { appendFileSync } from 'node:fs';
import express from 'express';
import { Once } from 'once-idempotency';
import { onceExpress } from 'once-idempotency/express';

const once = new Once(process.env.ONCE_STORE ?? 'sqlite:shop.db');
const app = express();
app.use(express.json()); // Before onceExpress: the body is compared.
// In production take the client from its verified token: whoever knows another's header gets that one's answers.
app.use(onceExpress({ once, principal: 'X-Api-Key' }));

// What must not happen twice: a call to the bank, a mail.
const act = (line) => appendFileSync('shop.log', `${line}\n`);

app.post('/orders', (request, response) => {
  const { id, cents } = request.body;
  act(`charged order ${id}: ${cents}`);
  response.status(201).json({ order: id, receipt: `r-${id}` });
});

const server = app.listen(Number(process.env.PORT ?? 8000), '127.0.0.1', () => {
  console.log(`listening on port ${server.address().port}`);
});
