export * from './bullmq.cjs';
