from streamd.cli.main import main

main()
