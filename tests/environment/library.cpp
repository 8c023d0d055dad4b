// library STORE KEY FILE: one call of the library, whose work adds a line to the file. Prints how it ended: exit code 0
// for a result, 3 for an error, as a value or as an exception of the documented kinds.
#include <cstdio>
#include <fstream>
#include <string>

#include <once/engine/engine.hpp>
#include <once/error.hpp>
#include <once/stores/sqlite.hpp>

int main(int argc, char** argv) {
  if (argc != 4) return 64;
  try {
    once::Engine engine({.store = once::stores::make_sqlite_store({.path = argv[1]})});
    const once::Outcome outcome = engine.run(argv[2], "", [&](once::Context&) {
      std::ofstream(argv[3], std::ios::app) << "ran\n";
      return once::Result::inlined("out");
    });
    if (outcome.kind != once::Outcome::Kind::executed && outcome.kind != once::Outcome::Kind::replayed) {
      std::fprintf(stderr, "%s: %s\n", std::string(to_string(outcome.kind)).c_str(), outcome.error.message.c_str());
      return 3;
    }
    std::printf("%s\n", outcome.result.bytes.c_str());
    return 0;
  } catch (const once::Exception& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(to_string(error.kind())).c_str(), error.what());
    return 3;
  }
}
