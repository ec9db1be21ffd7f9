package drive;

import io.modelcontextprotocol.client.McpClient;
import io.modelcontextprotocol.client.McpSyncClient;
import io.modelcontextprotocol.client.transport.HttpClientStreamableHttpTransport;
import io.modelcontextprotocol.spec.McpSchema;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import tools.jackson.databind.json.JsonMapper;

/**
 * Drives the unmodified Java SDK for a test; testservers/node/driver.mjs says which lines it takes
 * and answers.
 */
public final class Driver {
  private static final JsonMapper JSON = JsonMapper.builder().build();

  private record Session(McpSyncClient client, AtomicInteger progress) {}

  private final Map<String, Session> sessions = new HashMap<>();

  public static void main(String[] args) throws Exception {
    PrintStream answers = System.out;
    System.setOut(System.err);
    Driver driver = new Driver();
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      Map<String, Object> answer;
      try {
        answer = Map.of("ok", driver.act(JSON.readValue(line, Map.class)));
      } catch (Exception e) {
        answer = Map.of("error", reason(e));
      }
      answers.println(JSON.writeValueAsString(answer));
      answers.flush();
    }
    System.exit(0);
  }

  private Map<String, Object> act(Map<String, Object> command) {
    String as = (String) command.get("as");
    switch ((String) command.get("do")) {
      case "state":
        return Map.of("version", version(), "elicitation", true, "events", true);
      case "open":
        sessions.put(as, open(URI.create((String) command.get("url"))));
        return Map.of();
      case "list":
        return Map.of("tools", sessions.get(as).client.listTools().tools().stream().map(McpSchema.Tool::name).toList());
      case "call":
        return call(sessions.get(as), command);
      case "close":
        sessions.remove(as).client.closeGracefully();
        return Map.of();
      default:
        throw new IllegalArgumentException("no such command: " + command.get("do"));
    }
  }

  private static Session open(URI url) {
    AtomicInteger progress = new AtomicInteger();
    String host = url.getScheme() + "://" + url.getAuthority();
    McpSyncClient client =
        McpClient.sync(HttpClientStreamableHttpTransport.builder(host).endpoint(url.getPath()).build())
            .requestTimeout(Duration.ofSeconds(20))
            .capabilities(McpSchema.ClientCapabilities.builder().elicitation().build())
            .elicitation(request -> new McpSchema.ElicitResult(McpSchema.ElicitResult.Action.ACCEPT, Map.of("ok", true)))
            .progressConsumer(notification -> progress.incrementAndGet())
            .build();
    try {
      client.initialize();
    } catch (RuntimeException e) {
      client.close();
      throw e;
    }
    return new Session(client, progress);
  }

  @SuppressWarnings("unchecked")
  private static Map<String, Object> call(Session session, Map<String, Object> command) {
    session.progress.set(0);
    Map<String, Object> arguments = (Map<String, Object>) command.getOrDefault("arguments", Map.of());
    Map<String, Object> meta = Boolean.TRUE.equals(command.get("progress")) ? Map.of("progressToken", "p") : null;
    McpSchema.CallToolResult result =
        session.client.callTool(new McpSchema.CallToolRequest((String) command.get("name"), arguments, meta));
    String text =
        result.content().stream()
            .map(c -> c instanceof McpSchema.TextContent t ? t.text() : "[" + c.type() + "]")
            .collect(Collectors.joining("\n"));
    return Map.of("text", text, "isError", Boolean.TRUE.equals(result.isError()), "progress", session.progress.get());
  }

  private static String version() {
    // The library's name on the class path has it; its manifest does not.
    String jar = McpClient.class.getProtectionDomain().getCodeSource().getLocation().getPath();
    return jar.replaceAll(".*mcp-core-(.*)\\.jar", "$1");
  }

  /** What a person reads of an error, its causes included. */
  private static String reason(Throwable error) {
    List<String> words = new ArrayList<>();
    for (Throwable e = error; e != null && words.size() < 4; e = e.getCause()) {
      words.add(String.valueOf(e.getMessage()));
    }
    return String.join(": ", words);
  }
}
