#pragma once

// 1: the work ran. 0: its result was replayed. -1: it failed.
extern "C" __attribute__((visibility("default"))) int plugin_run(const char* database, const char* key);
