package shop;

import java.io.PrintWriter;
import java.util.concurrent.atomic.AtomicIntegerArray;

import org.springframework.boot.CommandLineRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.kafka.core.KafkaTemplate;

/**
 * A Spring Boot service that knows nothing of the audit: JSON by KafkaTemplate, and what its futures were told.
 *
 * TOPIC EVENTS OUTCOMES; OUTCOMES gets a line for each event: a acknowledged, f failed, - neither.
 */
@SpringBootApplication
public class SpringService {
    public static void main(String[] args) throws Exception {
        AtomicIntegerArray outcomes = new AtomicIntegerArray(Integer.parseInt(args[1]));
        SpringApplication service = new SpringApplication(SpringService.class);
        service.addInitializers(context -> context.getBeanFactory().registerSingleton("outcomes", outcomes));
        service.run(args).close();
        try (PrintWriter out = new PrintWriter(args[2])) {
            for (int n = 0; n < outcomes.length(); n++) out.println("-af".charAt(outcomes.get(n)));
        }
    }

    @Bean
    CommandLineRunner sender(KafkaTemplate<String, String> kafka, AtomicIntegerArray outcomes) {
        return args -> {
            for (int n = 0; n < outcomes.length(); n++) {
                int id = n;
                kafka.send(args[0], "k" + n % 1009, "{\"n\": " + n + "}")
                        .whenComplete((sent, error) -> outcomes.set(id, error == null ? 1 : 2));
            }
        };
    }
}
