//! Certificates that one side refuses, and the errors that the client reports.

use super::*;

#[test]
fn client_refuses_servers_that_it_cannot_trust() {
    run(|mut net| async move {
        let mut other = Pki::new(net.dir.path(), "other");
        let issued = [
            net.pki.issue("renamed", &["other.example.com"]),
            net.pki.issue_expired("old", &["nfs.example.com"]),
            other.issue("foreign", &["nfs.example.com"]),
            net.pki.issue("revoked", &["nfs.example.com"]),
        ];
        let crl = net.pki.revoke("list", &[&issued[3]]);
        let expected = [
            "is for another name: it has DnsName(\"other.example.com\"), not 'nfs.example.com'",
            "certificate expired ",
            "is from an unknown issuer",
            "has been revoked",
        ];
        for (issued, expected) in issued.iter().zip(expected) {
            let server = net.serve(&[("tls_cert", issued.cert()), ("tls_key", issued.key())]);
            let error = problem(net.client(server, &[("tls_crl", &crl)])).await;
            assert!(error.contains(expected), "{error}");
        }
        let good = net.serve_tls(&[]);
        assert!(net.client(good, &[("tls_crl", &crl)]).await.is_ok());
        assert!(net.client(good, &[("tls_name", "127.0.0.1")]).await.is_ok(), "an address in the SAN must match");
        assert!(problem(net.client(good, &[("tls_name", "127.0.0.9")])).await.contains("another name"));
    });
}

#[test]
fn server_refuses_clients_that_it_does_not_admit() {
    run(|mut net| async move {
        let ca = net.pki.ca("test");
        let mut other = Pki::new(net.dir.path(), "other");
        let good = net.pki.issue("good", &["client.example.com"]);
        let issued = [
            net.pki.issue("renamed", &["other.example.com"]),
            net.pki.issue_expired("old", &["client.example.com"]),
            other.issue("foreign", &["client.example.com"]),
            net.pki.issue("revoked", &["client.example.com"]),
        ];
        let crl = net.pki.revoke("list", &[&issued[3]]);
        let expected = [
            "the names in our certificate are not admitted",
            "our certificate has expired",
            "it does not know the issuer of our certificate",
            "our certificate has been revoked",
        ];
        let names = [("tls_ca", &ca[..]), ("tls_crl", &crl), ("tls_names", "x.example.com, client.example.com")];
        let server = net.serve_tls(&names);
        for (issued, expected) in issued.iter().zip(expected) {
            let own = [("xprtsec", "mtls"), ("tls_cert", issued.cert()), ("tls_key", issued.key())];
            let error = problem(net.client(server, &own)).await;
            assert!(error.contains("the peer refused the session") && error.contains(expected), "{error}");
        }
        let own = [("xprtsec", "mtls"), ("tls_cert", good.cert()), ("tls_key", good.key())];
        assert_eq!(echo(&net.client(server, &own).await.unwrap(), 5).await, 18);
        let mutual = net.serve_tls(&[&names[..], &[("tls_required", "mtls")]].concat());
        let error = problem(net.client(mutual, &[])).await;
        assert!(error.contains("it demands a certificate of this side (xprtsec=mtls)"), "{error}");
        let without = net.serve_tls(&[]);
        let error = problem(net.client(without, &own)).await;
        assert!(error.contains("the server has not asked for the client's certificate"), "{error}");
    });
}

#[test]
fn invalid_options_and_files_are_named() {
    run(|mut net| async move {
        let (cert, key) = (net.server.cert().to_owned(), net.server.key().to_owned());
        let error = |options: &[(&str, &str)]| net.try_kind(1, options).map(drop).unwrap_err();
        let cases: [(&[(&str, &str)], &str); 10] = [
            (&[("tls_cert", &cert)], "option 'tls_cert': needs tls_key"),
            (&[("tls_required", "tls")], "option 'tls_required': needs tls_cert"),
            (&[("tls_cert", "/none"), ("tls_key", &key)], "option 'tls_cert': /none: No such file"),
            (&[("tls_cert", &key), ("tls_key", &key)], "server.key: has no certificate in PEM form"),
            (&[("tls_cert", &cert), ("tls_key", &key), ("tls_names", "a.b")], "option 'tls_names': needs tls_ca"),
            (&[("xprtsec", "ssl")], "'ssl' is none of none, tls and mtls"),
            (&[("xprtsec", "tls"), ("tls_name", "a b")], "'a b' is neither a DNS name nor an address"),
            (&[("xprtsec", "mtls"), ("tls_name", "a"), ("tls_ca", &cert)], "mtls needs tls_cert and tls_key"),
            (&[("xprtsec", "tls"), ("tls_name", "a"), ("tls_ca", &key)], "option 'tls_ca': "),
            (&[("xprtsec", "none"), ("tls_name", "a"), ("sasl", "x")], "option 'sasl': no such option"),
        ];
        for (options, expected) in cases {
            let error = error(options);
            assert!(error.contains(expected), "{error}");
        }
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&net.server.key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = error(&[("tls_cert", &cert), ("tls_key", &key)]);
        assert!(error.contains("has the mode 0644: other users must not have access"), "{error}");
        let other = net.pki.issue("other", &["a"]);
        let error = net.try_kind(1, &[("tls_cert", &cert), ("tls_key", other.key())]).map(drop).unwrap_err();
        assert!(error.contains("option 'tls_key'") && error.contains("does not fit to"), "{error}");
    });
}

#[test]
fn another_application_protocol_is_refused_and_none_is_accepted() {
    run(|net| async move {
        let net = &net;
        let ca = net.pki.ca("test");
        let raw: RawOptions = [("xprtsec", "tls"), ("tls_ca", &ca), ("tls_name", "nfs.example.com")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let tls = ClientTls::parse(&mut rpc::OptionReader::new("tcp", &raw)).unwrap().unwrap();
        let raw: RawOptions = [("tls_cert", net.server.cert()), ("tls_key", net.server.key())]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let server = ServerTls::parse(&mut rpc::OptionReader::new("tcp", &raw)).unwrap().unwrap();
        let with = |protocols: &[&[u8]]| {
            let mut config = (*tls.for_connection().0).clone();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            let client = Handshake::client(Arc::new(config), tls.name().clone(), None).unwrap();
            shake(client, Handshake::server(server.config()).unwrap())
        };
        assert!(with(&[]).is_ok() && with(&[b"sunrpc"]).is_ok() && with(&[b"h2", b"sunrpc"]).is_ok());
        assert!(matches!(with(&[b"h2"]), Err(rustls::Error::NoApplicationProtocol)));
    });
}

/// Runs a handshake in memory. Returns the server's error.
fn shake(mut client: Handshake, mut server: Handshake) -> Result<(), rustls::Error> {
    let mut bytes = Vec::new();
    for _ in 0..10 {
        let _ = client.advance(&bytes);
        match server.advance(&client.take_outgoing())? {
            Progress::Done => return Ok(()),
            Progress::More => bytes = server.take_outgoing(),
        }
    }
    panic!("the handshake does not end")
}
