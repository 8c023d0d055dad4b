// A result that is too large for a record is kept in a directory (or in S3), and replayed from there.
#include <cstdio>
#include <string>

#include <once/engine/engine.hpp>
#include <once/stores/open.hpp>

static std::string render_report() {
  std::printf("rendering\n");
  std::string pages;
  unsigned number = 1;
  while (pages.size() < 1'000'000) {  // Bytes that do not compress.
    number = number * 1'664'525U + 1'013'904'223U;
    pages += static_cast<char>(number >> 24U);
  }
  return pages;
}

int main() {
  // [open]
  // s3://bucket/prefix instead of the directory; "dynamodb://table?offload=..." instead of the file.
  const once::Backend backend = once::open_backend("sqlite:reports.db?offload=file:reports.results");
  once::Engine engine({.store = backend.store, .offload = backend.offload});
  // [/open]
  for (int i = 0; i < 2; ++i) {
    const once::Outcome outcome = engine.run("report-2026-05", {}, render_report);
    std::printf("%s: %zu bytes\n", std::string(to_string(outcome.kind)).c_str(), outcome.value().size());
  }
}
