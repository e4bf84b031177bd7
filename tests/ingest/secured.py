"""Apache Kafka that asks for credentials: SASL with TLS and without on two listeners, client certificates on a third."""

import subprocess

from streamd.demo.broker import ApacheKafka, free_port

USER, PASSWORD = "streamd", "hush: 'quoted' #1"


def make_certificates(folder):
    """An authority (ca.pem), a server for 127.0.0.1 and localhost, a client with an encrypted key."""
    folder.mkdir(parents=True)

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("server", "client"):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                "-subj", f"/CN={name}", "-keyout", f"{name}.plain", "-out", f"{name}.csr")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-extfile", "names", "-out", f"{name}.pem")
    openssl("pkcs8", "-topk8", "-in", "client.plain", "-out", "client.key", "-passout", f"pass:{PASSWORD}")
    both = (folder / "server.plain").read_text() + (folder / "server.pem").read_text()
    (folder / "server-both.pem").write_text(both)


class SecuredKafka(ApacheKafka):
    """One node. Its plain listener is for the test alone; `sasl`, `bare` and `mutual` are host:port of the others."""

    def __init__(self, home, folder):
        self.certificates = folder / "certificates"
        make_certificates(self.certificates)
        self.sasl, self.mutual, self.bare = (f"localhost:{free_port()}" for _ in range(3))
        super().__init__(home, folder)

    def configure(self, node):
        super().configure(node)
        port, controller = self._ports[node]
        login = "org.apache.kafka.common.security"
        quoted = PASSWORD.replace("'", "\\'")
        plain = f'{login}.plain.PlainLoginModule required user_{USER}="{quoted}";'
        added = {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},"
                         f"SASL://{self.sasl},MUTUAL://{self.mutual},BARE://{self.bare}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_SSL,MUTUAL:SSL,BARE:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512", "listener.name.bare.sasl.enabled.mechanisms": "PLAIN",
            **{f"listener.name.{name}.plain.sasl.jaas.config": plain for name in ("sasl", "bare")},
            "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
            "listener.name.mutual.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificates / "server-both.pem",
            "ssl.truststore.type": "PEM", "ssl.truststore.location": self.certificates / "ca.pem"}
        # Of two lines with one key the later counts.
        with (self._folder / str(node) / "server.properties").open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in added.items())
