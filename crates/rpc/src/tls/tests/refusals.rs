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
        let cases: [(&[(&str, &str)], &str); 23] = [
            (&[("tls_cert", &cert)], "option 'tls_cert': needs tls_key"),
            (&[("tls_required", "tls")], "option 'tls_required': needs tls_cert"),
            (&[("ktls", "auto")], "option 'ktls': needs tls_cert"),
            (&[("ktls", "on")], "option 'ktls': 'on' is neither auto nor off"),
            (&[("tls_cert", "/none"), ("tls_key", &key)], "option 'tls_cert': /none: No such file"),
            (&[("tls_cert", &key), ("tls_key", &key)], "server.key: has no certificate in PEM form"),
            (&[("tls_cert", &cert), ("tls_key", &key), ("tls_names", "a.b")], "option 'tls_names': needs tls_ca"),
            (&[("xprtsec", "ssl")], "'ssl' is none of none, tls and mtls"),
            (&[("xprtsec", "tls"), ("tls_name", "a b")], "'a b' is neither a DNS name nor an address"),
            (&[("xprtsec", "mtls"), ("tls_name", "a"), ("tls_ca", &cert)], "mtls needs tls_cert and tls_key"),
            (&[("xprtsec", "tls"), ("tls_name", "a"), ("tls_ca", &key)], "option 'tls_ca': "),
            (&[("xprtsec", "none"), ("sasl", "x")], "option 'sasl': no such option"),
            (&[("tls_key", &key)], "option 'tls_key': needs tls_cert"),
            (&[("tls_ca", &cert)], "option 'tls_ca': needs tls_cert"),
            (&[("tls_crl", &cert)], "option 'tls_crl': needs tls_cert"),
            (&[("tls_names", "a")], "option 'tls_names': needs tls_cert"),
            (&[("tls_alpn", "optional")], "option 'tls_alpn': has no effect without TLS"),
            (&[("tls_name", "a")], "option 'tls_name': has no effect without TLS"),
            (&[("xprtsec", "none"), ("tls_ca", &cert)], "option 'tls_ca': has no effect without TLS"),
            (&[("xprtsec", "none"), ("tls_cert", &cert)], "option 'tls_cert': has no effect without TLS"),
            (&[("xprtsec", "tls"), ("tls_name", "a"), ("tls_alpn", "h2")], "'h2' is neither required nor optional"),
            (&[("xprtsec", "none"), ("ktls", "off")], "option 'ktls': has no effect without TLS"),
            (&[("xprtsec", "tls"), ("tls_name", "a"), ("ktls", "on")], "option 'ktls': 'on' is neither auto nor off"),
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
            let client = Handshake::client(Arc::new(config), tls.name().clone(), Demands::default()).unwrap();
            shake(client, Handshake::server(server.config()).unwrap())
        };
        assert!(with(&[]).is_ok() && with(&[b"sunrpc"]).is_ok() && with(&[b"h2", b"sunrpc"]).is_ok());
        assert!(matches!(with(&[b"h2"]), Err(rustls::Error::NoApplicationProtocol)));
    });
}

#[test]
fn server_that_selects_no_application_protocol_is_refused_unless_an_option_permits_it() {
    run(|mut net| async move {
        let tls = net.server_tls(&[]);
        let server = net.serve_with(tls.clone());
        tls.select_no_protocol();
        let error = problem(net.client(server, &[])).await;
        assert!(error.contains("the server has not selected the application protocol sunrpc"), "{error}");
        assert_eq!(net.executed(), 0);
        let client = net.client(server, &[("tls_alpn", "optional")]).await.unwrap();
        assert_eq!(echo(&client, 10).await, 0);
        tls.reload().unwrap();
        assert!(net.client(server, &[("tls_alpn", "required")]).await.is_ok());
    });
}

#[test]
fn client_tells_a_server_why_it_refuses_the_session() {
    run(|mut net| async move {
        let own = net.pki.issue("client", &["client.example.com"]);
        let mutual = [("xprtsec", "mtls"), ("tls_cert", own.cert()), ("tls_key", own.key())];
        let cases = [
            (&[][..], true, "it does not accept our application protocol"),
            (&mutual[..], false, "alert InsufficientSecurity"),
        ];
        for (options, without_protocol, expected) in cases {
            let tls = net.server_tls(&[]);
            if without_protocol {
                tls.select_no_protocol();
            }
            let mut listening = simnet::StreamListener::bind(&net.network, "127.0.0.1:0".parse().unwrap()).unwrap();
            let address = listening.local_addr();
            let serving = async {
                let mut wire = Wire::clear(listening.accept().await.unwrap());
                // The alert can arrive together with the last message of the handshake.
                match records::accept_session(&mut wire, &tls).await {
                    Ok(()) => records::receive(&mut wire).await.unwrap_err().to_string(),
                    Err(error) => error::describe(&error),
                }
            };
            let (_, refused) = tokio::join!(problem(net.client(address, options)), serving);
            assert!(refused.contains(expected), "{refused}");
        }
    });
}

#[test]
fn expired_revocation_lists_are_refused() {
    run(|mut net| async move {
        let ca = net.pki.ca("test");
        let own = net.pki.issue("client", &["client.example.com"]);
        let list = net.pki.revoke_until("list", &[], (2020, 1, 1));
        let expected = "list.crl: the revocation list of 'CN=test issuer' expired ";
        for options in [
            &[("tls_cert", net.server.cert()), ("tls_key", net.server.key()), ("tls_ca", &ca), ("tls_crl", &list)][..],
            &[("xprtsec", "tls"), ("tls_name", "a"), ("tls_ca", &ca), ("tls_crl", &list)],
        ] {
            let error = net.try_kind(1, options).map(drop).unwrap_err();
            assert!(error.contains("option 'tls_crl': ") && error.contains(expected), "{error}");
        }
        let list = net.pki.revoke("list", &[]);
        let tls = net.server_tls(&[("tls_ca", &ca), ("tls_crl", &list)]);
        let server = net.serve_with(tls.clone());
        let mutual = [("xprtsec", "mtls"), ("tls_cert", own.cert()), ("tls_key", own.key())];
        assert!(net.client(server, &mutual).await.is_ok());
        net.pki.revoke_until("list", &[], (2020, 1, 1));
        let error = tls.reload().unwrap_err();
        assert!(error.starts_with("tls_crl: ") && error.contains(expected), "{error}");
        assert!(net.client(server, &mutual).await.is_ok(), "the former list must stay in use");
    });
}

#[test]
fn revocation_list_that_expires_in_use_admits_nobody() {
    run(|mut net| async move {
        let ca = net.pki.ca("test");
        let own = net.pki.issue("client", &["client.example.com"]);
        // A simulation begins on 13 September 2020 at noon.
        let list = net.pki.revoke_until("list", &[], (2020, 9, 14));
        let of_server = net.serve_tls(&[("tls_ca", &ca), ("tls_crl", &list)]);
        let mutual = [("xprtsec", "mtls"), ("tls_cert", own.cert()), ("tls_key", own.key())];
        assert_eq!(echo(&net.client(of_server, &mutual).await.unwrap(), 1).await, 18);
        let plain = net.serve_tls(&[]);
        let options = [("xprtsec", "tls"), ("tls_ca", &ca), ("tls_name", "127.0.0.1"), ("tls_program", "536870913.1")];
        let kind = net.kind(2, &[&options[..], &[("tls_crl", &list)]].concat());
        let connect = || Client::connect(kind.clone(), plain, ClientOptions::new(PROGRAM, 1));
        assert_eq!(echo(&connect().await.unwrap(), 1).await, 0);
        let log = simnet::Log::collect(tracing::Level::INFO, "tls::server");
        tokio::time::sleep(std::time::Duration::from_secs(12 * 3600)).await;
        let error = problem(net.client(of_server, &mutual)).await;
        assert!(error.contains("the peer refused the session"), "{error}");
        let logged = log.lines().concat();
        let expected = format!("its revocation list in {list} expired ");
        assert!(logged.contains(&expected), "{logged}");
        assert_eq!(
            echo(&net.client(of_server, &[]).await.unwrap(), 1).await,
            0,
            "a client without certificate is not affected"
        );
        let error = problem(connect()).await;
        assert!(error.contains(&expected), "{error}");
    });
}

#[test]
fn client_uses_replaced_files_when_it_connects_again() {
    run(|mut net| async move {
        let ca = net.pki.ca("test");
        let server = net.serve_tls(&[("tls_ca", &ca), ("tls_required", "mtls")]);
        let own = net.pki.issue("client", &["client.example.com"]);
        let renewed = net.pki.issue("renewed", &["renewed-client.example.com"]);
        let mutual = [("xprtsec", "mtls"), ("tls_cert", own.cert()), ("tls_key", own.key())];
        let client = net.client(server, &mutual).await.unwrap();
        assert_eq!(echo(&client, 1).await, "client.example.com".len() as u32);
        // Between the two steps of a renewal, the former pair is used.
        std::fs::copy(&renewed.cert, &own.cert).unwrap();
        net.network.cut_all();
        assert_eq!(echo(&client, 1).await, "client.example.com".len() as u32);
        std::fs::copy(&renewed.key, &own.key).unwrap();
        net.network.cut_all();
        assert_eq!(echo(&client, 1).await, "renewed-client.example.com".len() as u32);
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
