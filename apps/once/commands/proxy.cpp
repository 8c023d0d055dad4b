// once proxy: a reverse proxy that makes a service's endpoints run once for each key.
#include <CLI/CLI.hpp>
#include <memory>

#include "commands/commands.hpp"
#include "import/fallback.hpp"
#include "process/proxy_command.hpp"

namespace once::cli {

void add_proxy(CLI::App& app, Invocation& invocation) {
  CLI::App* const command =
      app.add_subcommand("proxy", "Make any HTTP service idempotent: its requests run once per Idempotency-Key");
  const auto options = std::make_shared<ProxyCommand>(*command);
  command->add_option("--config", options->config,
                      "A TOML file of settings with the names of the flags; a flag overrides the file");
  CLI::Option* const check =
      command->add_flag("--check", options->check, "Only check the settings, and print the resulting values");
  command->add_flag("--json", options->json, "With --check: write JSON, errors included")->needs(check);
  command
      ->add_flag(
          "--no-files", options->no_files,
          "With --check: do not look for the files and directories that the settings name, as they are elsewhere")
      ->needs(check);
  command->footer(
      "Examples:\n"
      "  once proxy --listen 127.0.0.1:8080 --upstream http://127.0.0.1:9000 --no-principal\n"
      "  once proxy --listen 0.0.0.0:80 --upstream http://pay:9000 --wait 10s \\\n"
      "             --principal-jwt /etc/once/jwks.json --principal-jwt-audience pay \\\n"
      "             --store sqlite:/var/lib/once/once.db --access-log /var/log/once.log\n"
      "\n"
      "SIGHUP reads the file again: rules, upstreams, certificates, the log. Other contents\n"
      "of certificates, tokens and keys are found without it (--watch-interval). After SIGTERM\n"
      "or SIGINT, running requests are allowed to finish; a second one ends them.\n"
      "\n" +
      std::string(importing::fallback_help) +
      "\n"
      "Exit codes: 0 ended by a signal, 64 wrong settings, 243 the store, the port or\n"
      "the log cannot be used.");
  command->callback([options, &invocation] { invocation.action = [options] { return proxy_command(*options); }; });
}

}  // namespace once::cli
